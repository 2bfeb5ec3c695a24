"""Files of our own: whole or not at all, and never unpickled."""

from contmax_lab.files._atomic import make_folder as make_folder
from contmax_lab.files._atomic import write_atomically as write_atomically
from contmax_lab.files._atomic import write_json as write_json
from contmax_lab.files._checkpoint import Checkpoint as Checkpoint
from contmax_lab.files._checkpoint import read_checkpoint as read_checkpoint
from contmax_lab.files._checkpoint import write_checkpoint as write_checkpoint
from contmax_lab.files._plain import plain as plain
from contmax_lab.files._prepared_folder import fingerprint as fingerprint
from contmax_lab.files._prepared_folder import prepared_folder as prepared_folder
from contmax_lab.files._yaml import read_yaml as read_yaml
from contmax_lab.files._yaml import yaml_text as yaml_text
