"""The demo's table of speakers."""

from contmax_lab.contract import attention_table

VOWELS = attention_table(
    "vowels",
    "Who speaks? Attention over time",
    domain="utterance",
    about=(
        "Nine men say the Japanese vowels a and e; which of them speaks? 640 utterances of 7 to 29 frames, each frame "
        "twelve cepstral coefficients, in the published split: 270 to train (54 of them for validation) and 370 to "
        "test. The task series: two convolutions over time, one attention that gathers a single vector, a linear "
        "classifier; only the attention differs between the rows. (Kudo, Toyama & Shimbo 1999; data inside the package "
        "aeon.)"
    ),
)
