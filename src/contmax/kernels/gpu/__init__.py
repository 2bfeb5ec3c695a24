"""What kernels written in Triton share: how they are launched, and instructions. Importing it imports triton."""

import triton as triton
