"""From logits to text: the sampling formulas (`sampling`) and the loop around the model (`generate`)."""

from numpy_minimind.generation.loop import generate

__all__ = ["generate"]
