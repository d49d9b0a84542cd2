"""The text decoder of gated-delta-net and attention layers that several families share."""
