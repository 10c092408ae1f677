"""The engine of the table: create, read, update, tag and delete a resource as its row says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jmespath  # type: ignore[import-untyped]

from infra.rehearsal.plugins.aws.call import NotReady, ResourceCall
from infra.rehearsal.plugins.aws.mapping import from_api, inward, to_api
from infra.rehearsal.plugins.aws.table import LOCAL, ApiStep, Input, Query, TypeRow
from infra.rehearsal.plugins.wire import Props

_EXPRESSION = re.compile(r"\{([^{}]+)\}")
_Names = Mapping[str, Callable[[ResourceCall], Any]]


class Scope:
    """The names of a row's expressions, as JMESPath reads a mapping.

    They are `id`, `account`, `region`, `tagging` (the wanted tags as the API writes them), `old`, `state`, `answer`
    (of the creation, or the description), `request` (the inputs as the API writes them), those of the resource's class,
    and every property: as observed, wanted, recorded, or read from the ID.
    """

    def __init__(self, call: ResourceCall, names: _Names, answer: Any = None, properties: Props | None = None) -> None:
        self._call, self._answer, self._observed = call, answer, {} if properties is None else properties
        self._names: _Names = {
            "id": lambda call: call.id,
            "account": lambda call: call.clients.account,
            "region": lambda call: call.region,
            "tagging": lambda call: call.row.tagging and call.row.tagging.form(call.tags),
            "old": lambda call: call.old,
            "state": lambda call: call.state,
            "answer": lambda _: answer,
            "request": _request_fields,
            **names,
        }

    def get(self, name: str) -> Any:
        if name in self._names:
            return self._names[name](self._call)
        if name in self._call.row.table and name in self._call.old and name not in self._call.new:
            return self._observed.get(name)  # the program sets it no more: the recorded value is the old one
        sources = (self._observed, self._call.new, self._call.state)
        value = next((source[name] for source in sources if source.get(name) is not None), None)
        return _names_of(self._call).get(name) if value is None else value

    def fill(self, template: Any) -> Any:
        """Return a template's value, without the parts that have none."""
        if isinstance(template, dict):
            parts = {key: self.fill(part) for key, part in template.items()}
            return {key: part for key, part in parts.items() if part is not None} or None
        if isinstance(template, list):
            return [part for part in map(self.fill, template) if part is not None] or None
        if not isinstance(template, str):
            return template
        match = _EXPRESSION.fullmatch(template)
        return self.value(match[1]) if match else self.text(template)

    def text(self, template: str) -> str:
        return _EXPRESSION.sub(lambda match: str(self.value(match[1])), template)

    def value(self, expression: str) -> Any:
        return jmespath.search(expression, self)


def _request_fields(call: ResourceCall) -> dict[str, Any]:
    """Return the inputs as the API writes them, by the program's names."""
    table = call.row.table
    fields = {name: to_api({name: Input(api=name, **_inner(table[name]))}, call.new, call.row.case) for name in table}
    return {name: value[name] for name, value in fields.items() if value}


def _inner(entry: Input) -> dict[str, Any]:
    return {"kind": entry.kind, "fields": entry.fields}


def _names_of(call: ResourceCall) -> dict[str, str]:
    """Return the properties that the ID names."""
    key = call.row.key or call.row.id
    pattern = "".join(
        f"(?P<{re.match(r'[a-zA-Z]+', part)[0]}>.+?)" if number % 2 else re.escape(part)  # type: ignore[index]
        for number, part in enumerate(_EXPRESSION.split(key))
    )
    match = re.fullmatch(pattern, call.id) if "{" in key else None
    return match.groupdict() if match else {}


class ResourceType:
    """A resource type. A subclass does what a row cannot say."""

    names: _Names = {}
    """Names that the row's expressions may use besides those of `Scope`."""

    def __init__(self, row: TypeRow) -> None:
        self.row = row

    def create(self, call: ResourceCall) -> str:
        """Create it, wait until it is ready, and return its ID."""
        row = self.row
        answer = self.perform(call, row.create, self.created_tags(call))
        scope = Scope(call, self.names, answer)
        call.id = str(scope.text(row.id) if "{" in row.id else jmespath.search(row.id, answer))
        self.await_ready(call)
        if row.afterwards:
            initial = {name: value for name, value in row.afterwards.items() if call.new.get(name) is not None}
            call.old = {**call.new, **initial}
            self.update(call)
        return call.id

    def created_tags(self, call: ResourceCall) -> dict[str, Any]:
        tagging = self.row.tagging
        if not self.row.has_tags or not tagging or not tagging.created or not call.tags:
            return {}
        tags = tagging.form(call.tags)
        return {tagging.created: [{"ResourceType": tagging.kind, "Tags": tags}] if tagging.kind else tags}

    def read(self, call: ResourceCall) -> Props | None:
        """Return the observed properties, or None if the resource does not exist."""
        answer = self.find(call)
        return self.observe(call, answer) if answer else None

    def find(self, call: ResourceCall) -> dict[str, Any] | None:
        """Return AWS's description of the resource."""
        answer = call.or_none(lambda: self.look(call, self.row.find, Scope(call, self.names)))
        return None if not answer or self._is(answer, self.row.status.gone) else answer

    def look(self, call: ResourceCall, look: Query, scope: Scope) -> Any:
        arguments, client = scope.fill(look.arguments) or {}, call.client()
        if client.can_paginate(look.call):
            answer = client.get_paginator(look.call).paginate(**arguments).build_full_result()
        else:
            answer = getattr(client, look.call)(**arguments)
        return jmespath.search(scope.text(look.path), answer)

    def observe(self, call: ResourceCall, answer: dict[str, Any]) -> Props:
        row = self.row
        outputs = {name: Input() for name, expression in row.observe.items() if expression is None}
        plain = {name: entry for name, entry in row.table.items() if name not in row.observe}
        properties = from_api({**plain, **outputs}, answer, row.case)
        scope = Scope(call, self.names, answer, properties)
        for name, expression in row.observe.items():
            if expression is not None:
                template = expression.startswith("=")
                value = scope.fill(expression[1:]) if template else jmespath.search(expression, answer)
                self._note(properties, name, value)
        for name, look in row.look_ups.items():
            self._note(properties, name, self.look(call, look, scope))
        return {**properties, "tags": self._tags(call, answer, scope)} if row.has_tags else properties

    def _note(self, properties: Props, name: str, value: Any) -> None:
        if value is not None:
            properties[name] = inward(self.row.table.get(name, Input()), value, self.row.case)

    def _tags(self, call: ResourceCall, answer: dict[str, Any], scope: Scope) -> dict[str, str]:
        tagging = self.row.tagging
        if tagging is None or tagging.read is None:
            return call.tags
        look = tagging.read
        if isinstance(look, str):
            return tagging.parse(jmespath.search(look, answer))
        return tagging.parse(call.or_none(lambda: self.look(call, look, scope)))

    def update(self, call: ResourceCall) -> None:
        """Update everything except tags."""
        for step in self.row.update or ():
            if self.applies(call, step):
                self.perform(call, step)
                self.await_ready(call)

    def applies(self, call: ResourceCall, step: ApiStep) -> bool:
        if step.if_changed and not call.differs(*step.if_changed):
            return False
        if step.only_changed and not self._body(call, step):
            return False  # a program that stops setting a value leaves it to AWS
        return not step.when or bool(Scope(call, self.names).value(step.when))

    def perform(self, call: ResourceCall, step: ApiStep, extra: Mapping[str, Any] | None = None) -> Any:
        request = {**self.request(call, step), **(extra or {})}
        return call.retry(lambda: getattr(call.client(), step.call)(**request), step.retry)

    def request(self, call: ResourceCall, step: ApiStep) -> dict[str, Any]:
        body = self._body(call, step)
        if step.under:
            body = {step.under: body} if body else {}
        return {**(Scope(call, self.names).fill(step.arguments) or {}), **body}

    def _body(self, call: ResourceCall, step: ApiStep) -> dict[str, Any]:
        table = self.row.table
        names = [name for name in table if table[name].api != LOCAL] if step.send is None else step.send
        return call.request(*(name for name in names if not step.only_changed or call.differs(name)))

    def retag(self, call: ResourceCall, fresh: dict[str, str], stale: list[str]) -> None:
        tagging = self.row.tagging
        if tagging is None:
            return
        client, target = call.client(), Scope(call, self.names).fill(tagging.target)
        if stale:
            keys = [{tagging.stale_key: key} for key in stale] if tagging.stale_key else stale
            getattr(client, tagging.unset)(**target, **{tagging.stale: keys})
        if fresh:
            getattr(client, tagging.set)(**target, **{tagging.tags: tagging.form(fresh)})

    def delete(self, call: ResourceCall) -> None:
        for step in self.row.delete:
            if self.applies(call, step):
                request = self.request(call, step)
                act = getattr(call.client(), step.call)
                call.destroy(lambda act=act, request=request: act(**request), step.retry)  # type: ignore[misc]
        if self.row.lingers:
            call.wait(lambda: self._is_gone(call), f"{self.row.title} {call.id} to go")

    def _is_gone(self, call: ResourceCall) -> bool:
        answer = self.find(call)
        if answer and self._is(answer, self.row.status.stuck):
            raise NotReady(f"{self._state(call, answer)} while it was deleted")
        return not answer

    def await_ready(self, call: ResourceCall) -> None:
        if self.row.status.ready:
            call.wait(lambda: self.is_ready(call), f"{self.row.title} {call.id} to become {self.row.status.ready[0]}")

    def is_ready(self, call: ResourceCall) -> bool:
        answer = self.find(call) or {}
        if self._is(answer, self.row.status.failed):
            raise NotReady(self._state(call, answer))
        return self._is(answer, self.row.status.ready)

    def _is(self, answer: dict[str, Any], states: tuple[str, ...]) -> bool:
        state = jmespath.search(self.row.status.at, answer)
        return str(state).lower() in [word.lower() for word in states]

    def _state(self, call: ResourceCall, answer: dict[str, Any]) -> str:
        reason = jmespath.search(self.row.status.why, answer)
        reasons = "; ".join(map(str, reason)) if isinstance(reason, list) else reason
        state = jmespath.search(self.row.status.at, answer)
        return f"{self.row.title} {call.id} {state}: {reasons or 'AWS gives no reason'}"
