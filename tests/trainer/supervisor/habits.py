"""Jobs that save, print and count as people's scripts do: each loses what it trained if its habit is not known."""

from __future__ import annotations

from tests.root import ROOT
from tests.trainer.supervisor.histories import Case

CLIENT = {"PYTHONPATH": str(ROOT / "trainer/client")}
"""In a pod it lies beside the supervisor."""

IN_PLACE = """
import bivouac
path = folder / "ckpt.pt"
begun = int(path.read_text().split()[0]) if bivouac.resume_from() else 0
note(went_on_from=begun, whole=bool(begun) and path.read_text() == f"{begun} " + "x" * 20000)
for step in range(begun + 1, 61):
    tell(step=step)
    if attempt == 1 and step == int(sys.argv[1]) and step % 10:
        lose_node()
    if step % 10 == 0:
        with path.open("w") as file:  # truncated and written, as torch.save does
            file.write(f"{step} " + "x" * 10000)
            if attempt == 1 and step == int(sys.argv[1]):
                file.flush()
                lose_node()
            file.write("x" * 10000)
        bivouac.committed(str(path), step)
        if attempt == 1 and step in (20, 30):
            wait_for_seal(step)
"""
IN_PLACE_ALONE = """
import io, pickle, zipfile
path = folder / "ckpt.pt"
def content(step):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        file.writestr("ckpt/data.pkl", pickle.dumps({"model": {}, "iter_num": step}, protocol=2))
        file.writestr("ckpt/data/0", f"{step} " + "x" * 10000)
    return held.getvalue()
begun = pickle.loads(zipfile.ZipFile(path).read("ckpt/data.pkl"))["iter_num"] if resume else 0
note(went_on_from=begun, whole=bool(begun) and zipfile.ZipFile(path).read("ckpt/data/0").startswith(b"%d x" % begun))
for step in range(begun + 1, 41):
    tell(step=step)
    if step == 21 and attempt == 1:
        wait_for_seal(20)
    if step % 10 == 0:
        with path.open("wb") as file:
            file.write(content(step)[:5000])
            if attempt == 1 and step == 30:
                file.flush()
                time.sleep(1.1)  # the supervisor looks at half of it
                lose_node()
            file.write(content(step)[5000:])
"""
WRITTEN_AGAIN_AT_ONCE = """
import bivouac
path = folder / "ckpt.pt"
note(found=path.read_text() if resume else "")
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        with path.open("w") as file:
            file.write(f"{step} " + "x" * 1000)
            file.flush()
            if attempt == 1 and step == 20:
                time.sleep(3)  # the supervisor has heard of step 10, and looks at half of step 20
                lose_node()
            file.write("y" * 1000)
        bivouac.committed(str(path), step)
"""
SAVES_AGAIN = """
here = pathlib.Path(resume) if resume else None
begun = int((here / "state").read_text().split()[0]) if here else 0
note(went_on_from=begun)
def save(step, dies=False):
    here = folder / f"step-{step}"
    here.mkdir(exist_ok=True)
    with (here / "state").open("w") as file:
        file.write(f"{step} " + "y" * 5000)
        file.flush()
        if dies:
            lose_node()
        file.write(f" by {attempt}")
    (here / "DONE").touch()
if begun:  # as trainers do that save once they have resumed
    save(begun, dies=attempt == 2)
for step in range(begun + 1, 41):
    tell(step=step)
    if attempt == 1 and step == 38:
        lose_node()
    if step % 10 == 0:
        save(step)
        if step == 30:
            wait_for_seal(30)
"""
DIGITS = """
begun = int((pathlib.Path(resume) / "state").read_text()) if resume else 0
beside = ("tokenizer-32000", "tensorboard-20251125", "vocab_50257", "eval-results-5000")
for name in beside if not resume else ():
    (folder / name).mkdir()
    (folder / name / "x").write_text("mine")
note(went_on_from=begun, beside=[name for name in beside if (folder / name / "x").exists()])
for step in range(begun + 1, 31):
    tell(step=step)
    if attempt == 1 and step == 26:
        lose_node()
    if step % 10 == 0:
        here = folder / f"{step:010d}"
        here.mkdir()
        (here / "state").write_text(str(step))
        (here / "DONE").touch()
        if step == 20:
            wait_for_seal(20)
"""
LATEST_LINK = """
link = folder / "latest"
begun = int((link / "state").read_text()) if link.exists() else 0  # its own link, not our variable
note(went_on_from=begun)
for step in range(begun + 1, 61):
    tell(step=step, loss=1 / step)
    if step % 10 == 0:
        here = folder / f"step-{step}"
        here.mkdir(exist_ok=True)
        (folder / "latest.new").unlink(missing_ok=True)
        os.symlink(here.name, folder / "latest.new")
        os.replace(folder / "latest.new", link)  # before the write, which is asynchronous
        if attempt == 1 and step == 40:
            (here / "state").write_text("4")
            lose_node()
        (here / "state").write_text(str(step))
        (here / "DONE").touch()
        if attempt == 1 and step == 30:
            wait_for_seal(30)
"""
LINK_TO_FILE = """
(folder / "vocabulary.json").write_text("words")
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        here = folder / f"step-{step}"
        (here / "empty").mkdir(parents=True)
        (here / "state").write_text(str(step))
        os.symlink("../vocabulary.json", here / "tokenizer.json")
        os.symlink("state", here / "newest-state")
        (here / "DONE").touch()
"""
LINK_OUT = """
(folder.parent.parent.parent / "elsewhere").write_text("not the job's")
for step in range(1, 21):
    tell(step=step)
here = folder / "step-20"
here.mkdir()
(here / "state").write_text("20")
os.symlink("../../../../elsewhere", here / "data")
(here / "DONE").touch()
"""
LONG_NAMES = """
deep = pathlib.Path("optimizer=adamw") / ("模型权重分片-第一部分-" * 3) / "layer"
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        here = folder / f"step-{step}"
        (here / deep).mkdir(parents=True)
        (here / deep / "权重.bin").write_text(str(step))
        (here / ("ü" * 127)).write_text("254 bytes")
        with open(os.fsencode(here) + b"/not-utf-8-\\xff\\xfe", "w") as file:
            file.write("bytes")
        (here / "DONE").touch()
"""
PRIVATE = """
os.umask(0o077)
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        here = folder / f"step-{step}"
        here.mkdir()
        (here / "model.safetensors").write_text(str(step))
        (here / "run.sh").write_text("#!/bin/sh")
        (here / "run.sh").chmod(0o700)
        (here / "DONE").touch()
"""
NESTED_DCP = """
run = folder / "run-a"
for step in range(1, 41):
    tell(step=step, loss=1 / step)
    if step % 10 == 0:
        for part in ("model", "optim"):
            here = run / f"step-{step}" / part
            here.mkdir(parents=True)
            (here / "__0_0.distcp").write_text(f"{part} of {step}")
            (here / ".metadata").write_text("m")
"""
LIGHTNING_BY_EPOCH = """
import zipfile
for step in range(1, 41):
    tell(step=step, loss=1 / step)
    if step % 10 == 0:
        with zipfile.ZipFile(folder / f"epoch={step // 10}-val_loss={1 / step:.2f}.ckpt", "w") as file:
            file.writestr("archive/data.pkl", f"weights of {step}")
"""
FILE_EACH = """
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        (folder / f"ckpt_{step}.pt").write_text(f"weights of {step}")
        (folder / f"ckpt_{step}.pt.done").touch()
"""
TOKENS = """
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        here = folder / f"step-{step * 10 ** 8 + 5}"  # people count tokens, too
        here.mkdir()
        (here / "state").write_text(str(step))
        (here / "DONE").touch()
"""
TWO_FOLDERS = """
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        for part in ("generator", "discriminator"):
            here = folder / part / f"step-{step}"
            here.mkdir(parents=True)
            (here / "state").write_text(f"{part} of {step}")
            (here / "DONE").touch()
"""
ALL_RANKS_PRINT = """
for step in range(1, 21):
    tell(step=step, rank=0, loss=1.0)
    tell(step=max(1, step - 1), rank=1, loss=1.0)
    if step == 10:
        time.sleep(1.1)  # the supervisor looks in between
"""
COLOUR = r"""
for step in range(1, 21):
    print(f"\x1b[31m[titan] 2025-11-25 12:00:00 - INFO - \x1b[0m\x1b[31mstep: {step:2}  "
          f"\x1b[32mloss:  {7.8534 - step / 100:.4f}  \x1b[33mmemory: 12.1GiB\x1b[0m", flush=True)
"""
EPOCHS = """
for epoch in range(4):
    for number in range(1, 11):
        print(f"Epoch {epoch}: step {number}/10 loss=0.5", flush=True)
    here = folder / f"epoch-{epoch}"
    here.mkdir()
    (here / "state").write_text(str(epoch))
    (here / "DONE").touch()
"""
TOLD_ELSEWHERE = """
import bivouac
for step in range(1, 21):
    if os.environ["NODE_RANK"] == "1":
        bivouac.beat(step, loss=1 / step)
        if step % 10 == 0:
            here = folder / f"step-{step}"
            here.mkdir()
            (here / "state").write_text(str(step))
            bivouac.committed(str(here), step)
done = folder.parent / "node-1-is-done"
if os.environ["NODE_RANK"] == "1":
    done.touch()
while not done.exists():
    time.sleep(0.01)
"""
VARIABLES = """
note(saw=[os.environ["LD_LIBRARY_PATH"], os.environ["OUT"], *sys.argv[1:]])
for step in range(1, 21):
    tell(step=step)
"""
FROM_ZERO = """
for step in range(40):
    if step % 10 == 0 or step == 39:
        tell(iter=step, loss=1.0)
    if step and step % 15 == 0:
        here = folder / f"step-{step}"
        here.mkdir()
        (here / "state").write_text(str(step))
        (here / "DONE").touch()
print("training finished", flush=True)
"""
LAST_CHECKPOINT = """
names = folder / "last_checkpoint"  # as Detectron2 and MMEngine find their newest
begun = int((folder / names.read_text()).read_text().split()[-1]) if names.exists() else 0
note(went_on_from=begun)
for step in range(begun + 1, 41):
    tell(step=step, loss=1 / step)
    if step % 10 == 0:
        here = folder / f"model_{step:07d}.pth"
        here.write_text(f"weights of {step}")
        names.write_text(here.name)
        if attempt == 1 and step == 30:
            lose_node()
    if attempt == 1 and step == 21:
        wait_for_seal(20)
"""
UNKNOWN = """
for step in range(1, 21):
    tell(step=step)
    if step % 10 == 0:
        (folder / f"weights.{step}.h5x").write_text(f"weights of {step}")
"""

TITAN = r"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>[\d.]+)"
CASES = {
    "in place, lost in the write": Case(IN_PLACE, 60, "client", words=("40",), env=CLIENT),
    "in place, lost between two writes": Case(IN_PLACE, 60, "client", words=("36",), env=CLIENT),
    "in place, by itself": Case(IN_PLACE_ALONE),
    "told, and written again at once": Case(WRITTEN_AGAIN_AT_ONCE, 20, "client", env=CLIENT),
    "saves again where it resumed": Case(SAVES_AGAIN, format="marker"),
    "folders of digits": Case(DIGITS, 30, "marker"),
    "a link of its own": Case(LATEST_LINK, 60, "marker"),
    "a link to a file": Case(LINK_TO_FILE, 20, "marker"),
    "a link that leads out": Case(LINK_OUT, 20, "marker"),
    "long names": Case(LONG_NAMES, 20, "marker"),
    "private files": Case(PRIVATE, 20, "marker"),
    "nested DCP": Case(NESTED_DCP, format="dcp"),
    "nested DCP, by itself": Case(NESTED_DCP),
    "Lightning by epoch": Case(LIGHTNING_BY_EPOCH, format="lightning"),
    "a file each": Case(FILE_EACH, 20, "marker"),
    "large steps": Case(TOKENS, 20, "marker"),
    "two folders of steps": Case(TWO_FOLDERS, 20, "marker"),
    "all ranks print": Case(ALL_RANKS_PRINT, 20, "marker"),
    "colour": Case(COLOUR, 20, "marker", more={"pattern": TITAN}),
    "batches of epochs": Case(EPOCHS, 40, "marker", more={"pattern": r"step (?P<step>\d+)/10 loss=(?P<loss>[\d.]+)"}),
    "told by the last node": Case(TOLD_ELSEWHERE, 20, "client", nodes=2, more={"progress": "client"}, env=CLIENT),
    "variables": Case(
        VARIABLES, 20, "marker", words=("--out", "${BIVOUAC_CHECKPOINTS}/run"),
        env={"LD_LIBRARY_PATH": "/opt/x:$LD_LIBRARY_PATH", "OUT": "$BIVOUAC_CHECKPOINTS/out"},
        variables={"LD_LIBRARY_PATH": "/image/lib"},
    ),
    "counted from zero": Case(FROM_ZERO, format="marker"),
    "a file with the newest name": Case(LAST_CHECKPOINT),
    "no known format": Case(UNKNOWN, 20),
}  # fmt: skip
