"""The Ω_α-map of an arbitrary score on an arbitrary domain: from a score to a distribution."""

from contmax.prediction._box import BoxPrediction as BoxPrediction
from contmax.prediction._closed_forms import KnotsPrediction as KnotsPrediction
from contmax.prediction._closed_forms import NodesPrediction as NodesPrediction
from contmax.prediction._interval import IntervalPrediction as IntervalPrediction
from contmax.prediction._prediction import Prediction as Prediction
from contmax.prediction._regularized_prediction import register_prediction as register_prediction
from contmax.prediction._regularized_prediction import regularized_prediction as regularized_prediction
