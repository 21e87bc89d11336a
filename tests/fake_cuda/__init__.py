"""The engine on CUDA tensors without values: needs a CUDA build of torch, and no GPU."""
