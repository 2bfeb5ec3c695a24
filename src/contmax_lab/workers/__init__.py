"""Where trainings run: in processes of this machine, or on a Ray cluster. Who has trainings to do knows neither."""

from contmax_lab.workers._crew import Crew as Crew
from contmax_lab.workers._crew import Ensemble as Ensemble
from contmax_lab.workers._crew import LocalProcesses as LocalProcesses
from contmax_lab.workers._crew import Outcome as Outcome
from contmax_lab.workers._crew import Training as Training
from contmax_lab.workers._crew import Work as Work
from contmax_lab.workers._crew import Workers as Workers
from contmax_lab.workers._crew import train_all as train_all
from contmax_lab.workers._ray import RayCluster as RayCluster
