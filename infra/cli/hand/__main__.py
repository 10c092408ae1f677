"""The program of `pulumi` typed by hand: the driver's own, with the configuration that a driver would give it."""

from pathlib import Path

import pulumi
from pulumi.runtime.config import CONFIG, set_all_config

from infra.cli.hand.by_hand import configuration
from infra.cli.refusals import refusal
from infra.stack.program import program

try:
    root = Path(pulumi.get_root_directory() or Path.cwd().parents[2])  # an older language host does not say
    preview = pulumi.runtime.is_dry_run()
    set_all_config(dict(configuration(pulumi.get_stack(), CONFIG.get(), root, preview=preview)))
except Exception as error:
    raise pulumi.RunError(str(refusal(error))) from None  # which Pulumi prints without a traceback
program()
