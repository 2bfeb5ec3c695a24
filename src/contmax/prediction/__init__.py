"""The Ω_α-map of an arbitrary score on an arbitrary domain: from a score to a distribution."""

from ._box import BoxPrediction as BoxPrediction
from ._interval import IntervalPrediction as IntervalPrediction
from ._knots import KnotsPrediction as KnotsPrediction
from ._nodes import NodesPrediction as NodesPrediction
from ._prediction import Prediction as Prediction
from ._regularized_prediction import register_prediction as register_prediction
from ._regularized_prediction import regularized_prediction as regularized_prediction
