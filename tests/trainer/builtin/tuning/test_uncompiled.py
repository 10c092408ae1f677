"""Steps without torch's compiler: the same bits, and a process that never imports it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.root import ROOT

STEPS = """
import sys, torch
if sys.argv[1] == "ours":
    from trainer.builtin.engine import import_deepspeed
    import_deepspeed()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(9, 33), torch.nn.SiLU(), torch.nn.Linear(33, 5))
names = []
for again in range(2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    if again:
        optimizer.load_state_dict(state)
    optimizer.register_step_pre_hook(lambda *_: names.append("hook"))
    for _ in range(3):
        with torch.autograd.profiler.profile() as profile:
            model(torch.randn(4, 9)).square().mean().backward()
            optimizer.step()
        names += [row.key for row in profile.key_averages() if row.key.startswith("Optimizer.step")]
        optimizer.zero_grad()
    state = optimizer.state_dict()
print(names, [weight.detach().numpy().tobytes().hex() for weight in model.parameters()])
sys.exit(9 if "torch._dynamo" in sys.modules else 0)
"""


def run_steps(whose: str) -> tuple[int, str]:
    variables = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STEPS, whose]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout.strip().splitlines()[-1] if process.stdout else process.stderr


def test_an_optimizer_steps_to_the_same_bits_without_the_compiler() -> None:
    code, steps = run_steps("ours")
    torch_code, torch_steps = run_steps("torch's")
    assert (code, torch_code) == (0, 9) and steps == torch_steps
