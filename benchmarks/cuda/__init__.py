"""What can be said of the CUDA kernels without a GPU: registers, memory, occupancy."""
