"""Maps with the regulariser Ω_α on finite sets: from scores to probability vectors."""

from contmax.maps._entmax import entmax as entmax
from contmax.maps._entmax import softmax as softmax
from contmax.maps._entmax import sparsemax as sparsemax
from contmax.maps._moments import moments as moments
