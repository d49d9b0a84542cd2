"""Packs: the decoder's projections in few bits, as plain tensors that any machine writes and loads."""
