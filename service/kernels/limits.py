"""Hardware limits of the attention kernels: plain numbers, shared by the choice of a kernel and the kernels."""

TPU_LANES = 128  # width of a vector register; ragged paged attention takes heads of exactly this many dimensions
TPU_SUBLANE_COUNTS = (1, 2, 4)  # parts of a tile of 8 sublanes that ragged paged attention takes
GPU_LARGEST_HEAD_DIM = 256  # dimensions; what fits the tiles
AMPERE = (8, 0)  # the first CUDA compute capability whose tensor cores support bfloat16
