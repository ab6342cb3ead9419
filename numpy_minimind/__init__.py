"""numpy_minimind: MiniMind-3 in plain NumPy, a modern language model you can read forwards and backwards."""

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.model import MiniMindForCausalLM

__version__ = "0.1.0"

__all__ = ["MiniMindConfig", "MiniMindForCausalLM"]
