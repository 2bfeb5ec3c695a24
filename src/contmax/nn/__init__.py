"""Modules: the functions of the library with parameters, for use in a model."""

from contmax.nn._continuous import CombinedAttention as CombinedAttention
from contmax.nn._continuous import ContinuousAttention as ContinuousAttention
from contmax.nn._entmax_attention import EntmaxAttention as EntmaxAttention
from contmax.nn._finite import BagPooling as BagPooling
from contmax.nn._finite import DiscreteAttention as DiscreteAttention
from contmax.nn._finite import Entmax as Entmax
from contmax.nn._finite import FenchelYoungLoss as FenchelYoungLoss
from contmax.nn._finite import Sparsemax as Sparsemax
from contmax.nn._gates import GateHead as GateHead
from contmax.nn._heads import MomentHead as MomentHead
from contmax.nn._heads import PooledHead as PooledHead
from contmax.nn._heads import WindowHead as WindowHead
from contmax.nn._multihead import MultiheadContinuousAttention as MultiheadContinuousAttention
from contmax.nn._place import Place as Place
