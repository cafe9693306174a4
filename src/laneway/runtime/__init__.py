"""The runtime: carries out what the kernel decides, on one event loop, as its single writer."""
