"""A compact continuous-batching engine on one GPU, to hold predictions against.

It serves Llama-shaped models with random weights: paged KV cache, chunked prefill under a token budget, CUDA graphs
for every iteration, an open-loop load generator, a stamp for every token. It schedules as the policy `vllm_v1` of the
simulator does. Imports are PyTorch, Triton, NumPy and the standard library only.
"""
