"""What kernels written in Triton share: how they are launched, and instructions."""
