"""All mutants: the bugs that the checks of this project are themselves checked with."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import Mutant
from numpy_minimind.checking.mutants_attention import ATTENTION_MUTANTS
from numpy_minimind.checking.mutants_flash import FLASH_MUTANTS
from numpy_minimind.checking.mutants_head import HEAD_MUTANTS
from numpy_minimind.checking.mutants_layers import LAYER_MUTANTS
from numpy_minimind.checking.mutants_model import MODEL_MUTANTS
from numpy_minimind.checking.mutants_moe import MOE_MUTANTS
from numpy_minimind.checking.mutants_rope_softmax import ROPE_AND_SOFTMAX_MUTANTS
from numpy_minimind.checking.mutants_swiglu import SWIGLU_MUTANTS
from numpy_minimind.checking.mutants_training import TRAINING_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *LAYER_MUTANTS,
    *SWIGLU_MUTANTS,
    *ROPE_AND_SOFTMAX_MUTANTS,
    *ATTENTION_MUTANTS,
    *FLASH_MUTANTS,
    *MOE_MUTANTS,
    *HEAD_MUTANTS,
    *MODEL_MUTANTS,
    *TRAINING_MUTANTS,
)
