"""A whole training step of a model on GPUs: seconds, parts and memory."""

from gnomon.training.config import TrainConfig
from gnomon.training.step import TrainStep, train_step

__all__ = ["TrainConfig", "TrainStep", "train_step"]
