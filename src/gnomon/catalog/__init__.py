"""Facts: devices, links, nodes, models and their prices.

Everything is a YAML file under `data/`, with the source of each fact beside it; adding one needs no code.
"""

from gnomon.catalog.attention import AttentionKind, Indexer, LatentAttention, LinearAttention, MlpKind, SlidingWindow
from gnomon.catalog.devices import DTYPE_BYTES, Device, Dtype, RooflineConstants, device, device_names
from gnomon.catalog.memory import MemoryPlan, plan_memory
from gnomon.catalog.model_library import model, model_names
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import Link, Node, default_node, node, node_names
from gnomon.catalog.parallelism import Parallelism, tensor_degrees
from gnomon.catalog.quantization import Quantization, WeightFormat, WeightGroup, scheme, scheme_names, scheme_source
from gnomon.catalog.topology import Group
