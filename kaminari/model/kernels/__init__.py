"""Kernels of our own, each beside the plain form that it must equal. Imported only where they can run."""
