"""Finished checkpoints of well-known formats in a job's own folder.

Each format ends a checkpoint with a write that comes last, or it counts once it is whole and has not changed for some
looks (`layouts`). Only what is so ended counts as finished.
"""

from trainer.supervisor.formats.find import FORMATS as FORMATS
from trainer.supervisor.formats.find import KINDS as KINDS
from trainer.supervisor.formats.find import files_of as files_of
from trainer.supervisor.formats.find import have_ended as have_ended
from trainer.supervisor.formats.find import is_begun as is_begun
from trainer.supervisor.formats.find import lacks as lacks
from trainer.supervisor.formats.find import missing as missing
from trainer.supervisor.formats.find import newer_beside as newer_beside
from trainer.supervisor.formats.find import of_series as of_series
from trainer.supervisor.formats.find import of_step as of_step
from trainer.supervisor.formats.find import offered as offered
from trainer.supervisor.formats.find import whole_ranks as whole_ranks
from trainer.supervisor.formats.later import forget_later as forget_later
from trainer.supervisor.formats.recognise import Recogniser as Recogniser
from trainer.supervisor.formats.tree import Finished as Finished
