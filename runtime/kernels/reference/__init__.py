"""Reference operators: plain torch, exact, and tiled by the same block sizes as the compiled kernels."""
