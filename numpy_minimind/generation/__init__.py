"""From logits to text: the sampling formulas (`sampling`) and the loop around the model (`generate`)."""

from numpy_minimind.generation.generate import generate

__all__ = ["generate"]
