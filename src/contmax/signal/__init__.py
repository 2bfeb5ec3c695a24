"""From observations to a continuous signal V(t) = Bᵀψ(t)."""

from contmax.signal._intensity import fit_intensity as fit_intensity
from contmax.signal._observations import observation_positions as observation_positions
from contmax.signal._signal import Signal as Signal
from contmax.signal._signal import continuous_attention as continuous_attention
from contmax.signal._signal import fit_signal as fit_signal
from contmax.signal._signal import ridge_weights as ridge_weights
from contmax.signal._streaming import SignalAccumulator as SignalAccumulator
