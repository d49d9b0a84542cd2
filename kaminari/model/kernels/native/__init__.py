"""C++ kernels for the CPU: plain C functions over raw pointers, built on the machine that runs them."""
