"""The table: a pretrained model with softmax, and the models into which each way of conversion turns it."""

from contmax_lab.contract import Metric, Row, Table, seeds

_LAYERS = 6

MINILM = Table(
    name="minilm",
    title="A pretrained BERT converted from softmax to entmax, IMDB",
    rows=(
        Row("Softmax", "softmax"),
        Row("Entmax, switched at once", "at-once"),
        Row("Entmax, α rises to 1.5", "rising"),
        Row("Entmax, α learned per head", "per-head"),
        Row("Entmax, α rises to 2", "sparsemax"),
        Row("Its own vectors, α rises to 1.5", "vectors"),
    ),
    repetitions=seeds(3),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=2, compared=True),
        Metric("test.zeros", "zeros, %", scale=100, digits=1),
        *(
            Metric(f"test.zeros_{layer}", f"layer {layer}", scale=100, digits=0, spread=False)
            for layer in range(1, _LAYERS + 1)
        ),
        Metric("test.alpha", "α", digits=2, spread=False),
        Metric("test.fall_without_attended", "fall, attended deleted", scale=100, digits=1),
        Metric("test.fall_without_random", "fall, random deleted", scale=100, digits=1),
        Metric("test.cosine_before", "cosine before", digits=3, spread=False),
        Metric("test.cosine", "cosine", digits=3),
        Metric("test.spearman_before", "Spearman before", digits=3, spread=False),
        Metric("test.spearman", "Spearman", digits=3),
    ),
    notes=(
        "all-MiniLM-L6-v2, six layers of twelve heads, 384 wide, and the IMDB reviews of Maas et al. 2011, official "
        "split, cut to 192 tokens. 10 % of the training half, the same share of both labels, are validation, by which "
        "the weights of the best epoch are chosen; the test half is measured once. Means and sample deviations are "
        "over seeds of the training. All rows that learn labels share one recipe: three epochs, AdamW, a learning rate "
        "of 0.0001 that falls to 0, no dropout of weights. A linear layer judges the mean of the last states.",
        "α rises from 1 over the first epoch. Learned: it rises to 1.5 in the same way, and from then on each head "
        "learns its own between 1 and 2; α is the mean over the heads of all layers.",
        "zeros: share of the attention weights that are exactly zero, in each test review from every token to every "
        "token, padding left out; every weight of a layer counts alike, and every layer.",
        "fall: a fifth of the tokens of each test review is deleted, and what is left is read by the same model as if "
        "it were the whole review; the mean fall, in points of per cent, of the probability of the label that the "
        "whole review was given. attended: those tokens that receive most of the weight of the last layer, in the mean "
        "over heads and over the tokens that attend; random: as many, drawn by the seed of the training. The accuracy "
        "on what is left stands in the file of results.",
        "Its own vectors: no labels. The model with entmax learns, in three epochs, the vectors that the pretrained "
        "model with softmax makes of the two halves of each training review (the mean of the last states, brought to "
        "length 1); the loss is 1 − cosine. Measured on the halves of the test reviews: the cosine to the vector of "
        "the pretrained model, and Spearman's correlation of the similarities of pairs of halves, of one review and of "
        "two. before: the pretrained model, switched to entmax at once and not trained.",
    ),
    baseline="Softmax",
)
