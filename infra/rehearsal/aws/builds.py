"""CodeBuild whose builds are processes of the site, with their project's role and nothing of the caller's.

A build's container is a folder, in which this machine stands in for the image: what the project needs is installed. As
with buildspec version 0.2, all commands run in one shell, and the first that fails ends the build.
https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html
"""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from moto.codebuild.responses import CodeBuildResponse

from infra.rehearsal.aws.iam import access
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.world import World

log = logging.getLogger(__name__)

SERVICE = "codebuild.amazonaws.com"
FOLDER = "builds"
"""Folder of <work>/aws: one folder for each build, with its output in `log`."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-_]{1,254}")
_IMAGES = re.compile(r"aws/codebuild/[a-z0-9.:_-]+")
_KEPT = ("PATH", "LANG", "LC_ALL", "HOME", "XDG_CACHE_HOME")
"""Of this process's environment, what stands for the image's; and all that is Bivouac's own."""
_PHASES = ("install", "pre_build", "build", "post_build")
_OVERRIDDEN = frozenset({"environmentVariablesOverride", "idempotencyToken", "projectName"})


@dataclass
class Build:
    document: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def end(self, status: str) -> None:
        self.document |= {
            "buildComplete": True,
            "buildStatus": status,
            "currentPhase": "COMPLETED",
            "endTime": datetime.now(UTC),
        }


@dataclass
class Builds:
    world: World
    projects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """ARN -> project: each region has its own."""
    builds: dict[str, Build] = field(default_factory=dict)

    def create_project(self, params: Parameters) -> dict[str, Any]:
        self._check(params)
        arn = self._arn(params["name"])
        if arn in self.projects:
            raise AwsError("ResourceAlreadyExistsException", f"Project already exists: {arn}")
        now = datetime.now(UTC)
        self.projects[arn] = {**_DEFAULTS, **params, "arn": arn, "created": now, "lastModified": now}
        return {"project": self.projects[arn]}

    def update_project(self, params: Parameters) -> dict[str, Any]:
        """Change what is given; as on AWS, what is omitted stays."""
        project = self._project(params["name"])
        new_project = {**project, **params, "lastModified": datetime.now(UTC)}
        self._check(new_project)
        self.projects[project["arn"]] = new_project
        return {"project": new_project}

    def delete_project(self, params: Parameters) -> None:
        """Delete a project; as on AWS, one that does not exist is no error."""
        self.projects.pop(self._arn(params["name"]), None)

    def batch_get_projects(self, params: Parameters) -> dict[str, Any]:
        projects = {name: self.projects.get(self._arn(name)) for name in params["names"]}
        return {
            "projects": [project for project in projects.values() if project is not None],
            "projectsNotFound": [name for name, project in projects.items() if project is None],
        }

    def batch_get_builds(self, params: Parameters) -> dict[str, Any]:
        # As they are at one moment: an answer that is written while a build ends would be complete and in progress.
        documents = [dict(self.builds[id].document) for id in params["ids"] if id in self.builds]
        return {"builds": documents, "buildsNotFound": [id for id in params["ids"] if id not in self.builds]}

    def list_builds_for_project(self, params: Parameters) -> dict[str, Any]:
        self._project(params["projectName"])
        ids = [id for id, build in self.builds.items() if build.document["projectName"] == params["projectName"]]
        return {"ids": ids[::-1]}

    def start_build(self, params: Parameters) -> dict[str, Any]:
        project = self._project(params["projectName"])
        if lacking := sorted(set(params) - _OVERRIDDEN):
            raise AwsError("InvalidInputException", f"not part of the rehearsal: {', '.join(lacking)}")
        variables = {
            variable["name"]: variable for variable in project["environment"].get("environmentVariables") or ()
        }
        variables |= {variable["name"]: variable for variable in params.get("environmentVariablesOverride") or ()}
        id = f"{project['name']}:{uuid.uuid4()}"
        build = Build(
            {
                "id": id,
                "arn": self._arn(id, "build"),
                "projectName": project["name"],
                "startTime": datetime.now(UTC),
                "currentPhase": "QUEUED",
                "buildStatus": "IN_PROGRESS",
                "buildComplete": False,
                "environment": {**project["environment"], "environmentVariables": list(variables.values())},
                "serviceRole": project["serviceRole"],
                "timeoutInMinutes": project["timeoutInMinutes"],
            }
        )
        self.builds[id] = build
        environment = {name: str(variable["value"]) for name, variable in variables.items()}
        self.world.spawn(functools.partial(self._run, build, project, environment))
        return {"build": dict(build.document)}

    def _run(self, build: Build, project: dict[str, Any], variables: dict[str, str]) -> None:
        id = build.document["id"].rpartition(":")[2]
        folder = self.world.work / "aws" / FOLDER / id
        (folder / "src").mkdir(parents=True)
        role = project["serviceRole"]
        if not access.role_trusts(self.world, role, SERVICE, region=_region_of(project)):
            (folder / "log").write_text(f"CodeBuild is not authorized to perform: sts:AssumeRole on {role}\n")
            build.end("FAULT")
            return
        environment = {**self._environment(project, folder, build), **variables}
        with (folder / "log").open("ab") as log_file:
            build.process = subprocess.Popen(
                ["bash", "-e", "-c", script(project["source"]["buildspec"])],
                cwd=folder / "src",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )
            build.document["currentPhase"] = "BUILD"
            try:
                code = build.process.wait(project["timeoutInMinutes"] * 60)
                build.end("SUCCEEDED" if code == 0 else "FAILED")
            except subprocess.TimeoutExpired:
                self._kill(build)
                build.end("TIMED_OUT")
        log.info("build %s of %s: %s", id, variables, build.document["buildStatus"])

    def _environment(self, project: dict[str, Any], folder: Path, build: Build) -> dict[str, str]:
        seconds = build.document["timeoutInMinutes"] * 60
        session = access.open_session(self.world, project["serviceRole"], f"AWSCodeBuild-{folder.name}", seconds)
        environment = {
            name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("BIVOUAC_")
        }
        return environment | {
            "AWS_ENDPOINT_URL": self.world.endpoint_url,
            "AWS_ACCESS_KEY_ID": session.access_key_id,
            "AWS_SECRET_ACCESS_KEY": session.secret_access_key,
            "AWS_SESSION_TOKEN": session.session_token,
            "AWS_REGION": _region_of(project),
            "AWS_DEFAULT_REGION": _region_of(project),
            "AWS_EC2_METADATA_DISABLED": "true",
            "BIVOUAC_SITE": self.world.work.name,
            "BIVOUAC_RESULTS": str(folder / "results"),
            "CODEBUILD_BUILD_ID": build.document["id"],
            "CODEBUILD_SRC_DIR": str(folder / "src"),
            "PULUMI_HOME": str(folder / "pulumi"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }

    def stop(self) -> None:
        """End all builds."""
        for build in self.builds.values():
            self._kill(build)

    @staticmethod
    def _kill(build: Build) -> None:
        if build.process is not None and build.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(build.process.pid, signal.SIGKILL)

    def _project(self, name: str) -> dict[str, Any]:
        arn = self._arn(name)
        if arn not in self.projects:
            raise AwsError("ResourceNotFoundException", f"Project cannot be found: {arn}")
        return self.projects[arn]

    def _arn(self, name: str, kind: str = "project") -> str:
        """Return the ARN of a project, named or by its ARN, or of a build in the request's region."""
        region = self.world.request_region or self.world.region
        return f"arn:aws:codebuild:{region}:{self.world.account}:{kind}/{name.rpartition('project/')[2]}"

    def _check(self, params: Parameters) -> None:
        source, environment = params["source"], params["environment"]
        if not NAME.fullmatch(params["name"]):
            raise AwsError("InvalidInputException", f"Invalid project name: {params['name']}")
        if source["type"] != "NO_SOURCE" or params["artifacts"]["type"] != "NO_ARTIFACTS":
            raise AwsError("InvalidInputException", "a rehearsal has projects without source and artifacts only")
        if not source.get("buildspec"):
            raise AwsError("InvalidInputException", "Project source type NO_SOURCE requires a buildspec")
        if environment["type"] != "LINUX_CONTAINER" or not _IMAGES.fullmatch(environment["image"]):
            raise AwsError("InvalidInputException", f"Invalid image {environment['image']} of {environment['type']}")
        for name, smallest, largest in (("timeoutInMinutes", 5, 2160), ("queuedTimeoutInMinutes", 5, 480)):
            if not smallest <= params.get(name, smallest) <= largest:
                raise AwsError("InvalidInputException", f"Invalid {name}: {params[name]}, not {smallest} to {largest}")
        script(source["buildspec"])
        if not access.role_trusts(self.world, params["serviceRole"], SERVICE, region=self.world.request_region):
            refusal = f"CodeBuild is not authorized to perform: sts:AssumeRole on {params['serviceRole']}"
            raise AwsError("InvalidInputException", refusal)


def _region_of(project: dict[str, Any]) -> str:
    return str(project["arn"].split(":")[3])


_DEFAULTS = {"timeoutInMinutes": 60, "queuedTimeoutInMinutes": 480}


def script(buildspec: str) -> str:
    """Return a buildspec's commands, phase by phase; raise InvalidInputException for one that CodeBuild refuses."""
    try:
        document = yaml.safe_load(buildspec)
        phases = document["phases"]
        if float(document["version"]) != 0.2 or set(phases) - set(_PHASES):
            raise ValueError(document)
        return "\n".join(command for name in _PHASES for command in phases.get(name, {}).get("commands", ()))
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise AwsError("InvalidInputException", f"YAML_FILE_ERROR: {error}") from None


def install(world: World) -> None:
    builds = Builds(world)
    add_backend(world, CodeBuildResponse, builds)
    world.at_end.append(builds.stop)
