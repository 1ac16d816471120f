"""From other tools' command lines to scenarios, and back."""

from gnomon.convert.commands import engine_commands, server_command, vllm_flags
from gnomon.convert.conversion import Conversion, as_yaml, convert
from gnomon.convert.options import TOOLS

__all__ = ["TOOLS", "Conversion", "as_yaml", "convert", "engine_commands", "server_command", "vllm_flags"]
