"""A play of ansible runs on a thread beside another, and no signal reaches it there: it ends when it is told."""

from __future__ import annotations

import threading
from pathlib import Path

from infra.bake import playbook
from tests.waiting import HUNG_S

LONGEST_S = 300
PLAY = f"""
- hosts: all
  gather_facts: false
  tasks:
  - name: a task that takes minutes
    ansible.builtin.command: sleep {LONGEST_S}
"""
HERE = {"all": {"hosts": {"here": {"ansible_connection": "local"}}}}


def test_a_play_on_a_thread_ends_in_the_middle_of_a_task_once_its_work_is_over(tmp_path: Path) -> None:
    book, under_way, is_over = tmp_path / "book.yml", threading.Event(), threading.Event()
    book.write_text(PLAY)
    endings = list[object]()

    def work() -> None:
        try:
            endings.append(playbook.run(book, HERE, {}, tmp_path, lambda _: under_way.set(), is_over=is_over.is_set))
        except KeyboardInterrupt:
            endings.append("interrupted")

    thread = threading.Thread(target=work)
    thread.start()
    assert under_way.wait(HUNG_S)
    is_over.set()
    thread.join(HUNG_S)
    assert endings == ["interrupted"]
