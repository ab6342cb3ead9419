"""Everything that knows what a token spells: tokenizers, chat templates, the text of ids that arrive one by one.

load.py says what a tokenizer is and loads one; char.py and pretrained.py are the two that there are, bpe.py makes the
second kind from text, added_tokens.py is what stands beside its vocabulary. chat_template.py writes a conversation as a
model wants it, in the walls of sandbox.py; stream_decoder.py decodes while a model writes; conversation.py talks.
"""

from numpy_minimind.text.char import CharTokenizer
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.text.pretrained import PretrainedTokenizer

__all__ = ["CharTokenizer", "PretrainedTokenizer", "load_tokenizer"]
