"""Reading files that other people made: every complaint names the file, the line and what was expected."""

from contmax_lab.data._archives import unpack as unpack
from contmax_lab.data._reading import existing_file as existing_file
from contmax_lab.data._reading import numbered_lines as numbered_lines
from contmax_lab.data._reading import read_csv as read_csv
from contmax_lab.data._splitting import non_overlapping_holdout as non_overlapping_holdout
from contmax_lab.data._splitting import shuffled as shuffled
