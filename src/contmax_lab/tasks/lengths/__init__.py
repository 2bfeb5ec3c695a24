"""Longer than in training: sort, reverse, copy and recall sequences many times as long as those of the training.

The four problems and the models of Vasylenko et al. 2025 (arXiv 2506.16640, the code is deep-spin/asentmax), trained to
length 64 and tested on multiples of it. Every size below was read in their code; what differs here:

* one twentieth of their steps by default (``--share 20``), the same for every row; warm-up has the share that it has
  there. Sort 15,625, Reverse 11,718, Copy 7,812, recall 19,531 steps of 128 examples.
* weights and optimizer in float32, products in bfloat16 under autocast; theirs are bfloat16 throughout.
* α rises from 1.05 to 1.5 during the warm-up in rows with entmax: no key is out of reach before anything is learned.
* a step whose gradient is not finite changes nothing, and is counted.
* the recall problem draws its words anew for each example from all 65,536 of two letters; theirs has 10,000.
* every row tries two learning rates, that of the authors and 2.5 times as much, with the first seed, and takes the
  better one at length 64 of the validation for the other seeds.

* SSMax multiplies queries by β ln n, theirs by β ln(n + 1), where n is the number of keys that a query may attend.

Layers, heads, widths, batches, learning rates, AdamW (0.9, 0.99) without decay, clipping at 1, the cosine, slopes of
half of the heads, and the lengths of the validation by which the authors choose are as there.

Cells are trained several side by side, each on a stream and in a CUDA graph of its own, examples included: a step waits
for nothing on the host. A cell is short, so that a slice of ten minutes finishes whole cells, and a file with one line
for each is all that the next slice needs. ``python -m contmax_lab.tasks.lengths --budget-minutes 6`` trains with torch
and contmax alone; ``contmax reproduce lengths`` also makes the table.

Work per step of 128 examples, forward and backward, in linear maps: Sort and Copy 0.2 TFLOP, Reverse 0.6, recall 0.7.
Attention over up to 130 keys adds a few per cent of products, but reads and writes as much as the maps do; it takes the
fused kernels, which hold no matrix of weights. The rest of each layer, norms and gates, is compiled by torch.
"""
