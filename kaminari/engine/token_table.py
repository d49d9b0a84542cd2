"""What each token writes, in bytes: the grammar's view of the text that a detokenizer shows."""

from __future__ import annotations

from tokenizers import Tokenizer

from kaminari.engine.detokenizer import Vocabulary, decoder_steps, may_be_byte, token_bytes


def token_table(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of every token id; empty for a token that is special or unknown.

    A decoder's rule for the start of a text (a space that it strips) is left out: no token knows its place.
    Raises `CheckpointError`.
    """
    vocabulary = Vocabulary(tokenizer)
    spellings = [
        vocabulary.shown(token_id) for token_id in range(tokenizer.get_vocab_size(with_added_tokens=True))
    ]
    kinds = [step["type"] for step in decoder_steps(tokenizer)]
    if kinds == ["ByteLevel"]:
        return [b"" if spelling is None else token_bytes(spelling) for spelling in spellings]
    anchor = vocabulary.find_anchor()
    table = []
    for token_id, spelling in enumerate(spellings):
        if spelling is None:
            table.append(b"")
        elif "ByteFallback" in kinds and may_be_byte(spelling):
            table.append(bytes([int(spelling[3:5], 16)]))
        else:
            table.append(vocabulary.decode([anchor, token_id])[1:].encode())
    return table
