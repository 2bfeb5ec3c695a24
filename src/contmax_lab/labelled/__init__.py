"""Data of users: examples with a label, which is a class or a number, in files that they name on the command line.

What the tasks texts, series and images share. They differ in what an example is, how it is encoded and how it is drawn.
"""

from contmax_lab.labelled._answer import Answer as Answer
from contmax_lab.labelled._answer import Decision as Decision
from contmax_lab.labelled._answer import KnowsItsData as KnowsItsData
from contmax_lab.labelled._answer import attention_over as attention_over
from contmax_lab.labelled._answer import cell_centres as cell_centres
from contmax_lab.labelled._answer import heaviest as heaviest
from contmax_lab.labelled._answer import look_of as look_of
from contmax_lab.labelled._answer import middles as middles
from contmax_lab.labelled._classifier import Classifier as Classifier
from contmax_lab.labelled._classifier import class_measures as class_measures
from contmax_lab.labelled._classifier import class_metrics as class_metrics
from contmax_lab.labelled._classifier import confusion as confusion
from contmax_lab.labelled._classifier import confusion_figures as confusion_figures
from contmax_lab.labelled._classifier import rank_areas as rank_areas
from contmax_lab.labelled._examples import Example as Example
from contmax_lab.labelled._examples import Label as Label
from contmax_lab.labelled._examples import Parts as Parts
from contmax_lab.labelled._examples import Targets as Targets
from contmax_lab.labelled._examples import read_parts as read_parts
from contmax_lab.labelled._examples import some as some
from contmax_lab.labelled._exported import model_settings as model_settings
from contmax_lab.labelled._exported import read_card as read_card
from contmax_lab.labelled._exported import read_weights as read_weights
from contmax_lab.labelled._exported import write_model as write_model
from contmax_lab.labelled._panels import Panel as Panel
from contmax_lab.labelled._panels import PanelPicture as PanelPicture
from contmax_lab.labelled._panels import text_figure as text_figure
from contmax_lab.labelled._task import LabelledTask as LabelledTask
from contmax_lab.labelled._task import OnInstalledData as OnInstalledData
from contmax_lab.labelled._task import said as said
from contmax_lab.labelled._task import truth as truth
from contmax_lab.labelled._whole_files import Input as Input
from contmax_lab.labelled._whole_files import answered as answered
from contmax_lab.labelled._whole_files import attended_box as attended_box
from contmax_lab.labelled._whole_files import attended_interval as attended_interval
from contmax_lab.labelled._whole_files import numbered as numbered
from contmax_lab.labelled._whole_files import table_inputs as table_inputs
from contmax_lab.labelled._whole_files import told_of as told_of
