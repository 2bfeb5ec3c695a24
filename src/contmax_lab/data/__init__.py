"""Reading files that other people made: every complaint names the file, the line and what was expected.

Also the data that comes inside packages and that several tasks use.
"""

from contmax_lab.data._archives import unpack as unpack
from contmax_lab.data._packaged import DIGIT_CLASSES as DIGIT_CLASSES
from contmax_lab.data._packaged import DIGIT_SIDE as DIGIT_SIDE
from contmax_lab.data._packaged import MOTIONS as MOTIONS
from contmax_lab.data._packaged import VOWELS as VOWELS
from contmax_lab.data._packaged import Images as Images
from contmax_lab.data._packaged import Recordings as Recordings
from contmax_lab.data._packaged import SeriesSet as SeriesSet
from contmax_lab.data._packaged import digit_rows as digit_rows
from contmax_lab.data._packaged import handwritten_digits as handwritten_digits
from contmax_lab.data._packaged import packaged_series as packaged_series
from contmax_lab.data._pixels import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from contmax_lab.data._pixels import BrokenImageError as BrokenImageError
from contmax_lab.data._pixels import file_pixels as file_pixels
from contmax_lab.data._pixels import pixels as pixels
from contmax_lab.data._reviews import REVIEW_PARTS as REVIEW_PARTS
from contmax_lab.data._reviews import REVIEWS_ORIGINAL as REVIEWS_ORIGINAL
from contmax_lab.data._reviews import NumberedReviews as NumberedReviews
from contmax_lab.data._reviews import Review as Review
from contmax_lab.data._reviews import film_files as film_files
from contmax_lab.data._reviews import held_out_reviews as held_out_reviews
from contmax_lab.data._reviews import read_reviews as read_reviews
from contmax_lab.data._reviews import review_sources as review_sources
from contmax_lab.data._splitting import held_out_share as held_out_share
from contmax_lab.data._splitting import limited as limited
from contmax_lab.data._splitting import non_overlapping_holdout as non_overlapping_holdout
from contmax_lab.data._splitting import shuffled as shuffled
from contmax_lab.data._splitting import stratified_fold as stratified_fold
from contmax_lab.data._tables import TABLE_SUFFIXES as TABLE_SUFFIXES
from contmax_lab.data._tables import BrokenRow as BrokenRow
from contmax_lab.data._tables import Place as Place
from contmax_lab.data._tables import TableRow as TableRow
from contmax_lab.data._tables import existing_file as existing_file
from contmax_lab.data._tables import finite_number as finite_number
from contmax_lab.data._tables import numbered_lines as numbered_lines
from contmax_lab.data._tables import read_lines as read_lines
from contmax_lab.data._tables import read_rows as read_rows
from contmax_lab.data._tables import read_table as read_table
from contmax_lab.data._tables import table_kind as table_kind
from contmax_lab.data._vectors import find_vectors as find_vectors
from contmax_lab.data._vectors import half_table as half_table
from contmax_lab.data._vectors import read_vectors as read_vectors
from contmax_lab.data._vectors import vector_width as vector_width
