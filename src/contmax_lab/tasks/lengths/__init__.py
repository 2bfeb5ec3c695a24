"""Longer than in training: sort, reverse, copy and recall sequences many times as long as those of the training.

The four problems and the models of Vasylenko et al. 2025 (arXiv 2506.16640, the code is deep-spin/asentmax), trained to
length 64 and tested on multiples of it. Every size below was read in their code; what differs here:

* one twentieth of their steps by default (``--share 20``), the same for every row; warm-up has the share that it has
  there. Sort 15,625, Reverse 11,718, Copy 7,812, recall 19,531 steps of 128 examples.
* weights and optimizer in float32, products in bfloat16 under autocast; theirs are bfloat16 throughout.
* α rises from 1 to 1.5 during the warm-up in the rows with entmax: no key is out of reach before anything is learned.
* a step whose gradient is not finite changes nothing, and is counted.
* the recall problem draws its words anew for each example from all 65,536 of two letters; theirs has 10,000.
* every row tries two learning rates, that of the authors and 2.5 times as much, with the first seed, and takes the
  better one at length 64 of the validation for the other seeds.

Cells are trained several side by side, each on a stream and in a CUDA graph of its own, examples included: a step waits
for nothing on the host. A cell takes one to three minutes, so that a slice finishes whole cells, and a file with one
line for each is all that the next slice needs. ``python -m contmax_lab.tasks.lengths --budget-minutes 6`` trains with
torch and contmax alone; ``contmax reproduce lengths`` also makes the table.

Work per step, forward and backward, for a batch of 128 (FLOPs of the linear maps, without attention): Sort and Copy 0.2
TFLOP, Reverse 0.6, recall 0.7; attention over 64 to 130 keys adds a tenth. Some 130 launches per layer and step are
played back as one graph.
"""
