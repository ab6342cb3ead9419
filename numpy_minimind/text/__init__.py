"""Everything that knows what a token spells: tokenizers, chat templates, the text of ids that arrive one by one.

tokenizer.py says what a tokenizer is, load.py loads one; char.py and pretrained.py are the two that there are, bpe.py
makes the second kind from text, added_tokens.py is what stands beside its vocabulary, byte_level.py its letters.
chat_template.py writes a conversation as a model wants it, in the walls of sandbox.py, at the prices of costs.py; what
somebody typed stays text by typed_marks.py. stream_decoder.py decodes while a model writes; conversation.py talks.
"""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes

if TYPE_CHECKING:
    from numpy_minimind.text.char import CharTokenizer
    from numpy_minimind.text.conversation import Conversation
    from numpy_minimind.text.load import load_tokenizer
    from numpy_minimind.text.pretrained import PretrainedTokenizer
    from numpy_minimind.text.tokenizer import Tokenizer, prompt_ids
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "CharTokenizer": "numpy_minimind.text.char",
            "Conversation": "numpy_minimind.text.conversation",
            "PretrainedTokenizer": "numpy_minimind.text.pretrained",
            "Tokenizer": "numpy_minimind.text.tokenizer",
            "load_tokenizer": "numpy_minimind.text.load",
            "prompt_ids": "numpy_minimind.text.tokenizer",
        },
    )

__all__ = ["CharTokenizer", "Conversation", "PretrainedTokenizer", "Tokenizer", "load_tokenizer", "prompt_ids"]
