"""Shared code of Triton kernels: launches and PTX instructions. Importing this package imports triton."""

import triton as triton
