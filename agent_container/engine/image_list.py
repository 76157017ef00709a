"""The engine's images of one repository, which of them containers use, and the removal of a tag."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_container.image_prune import LocalImage

if TYPE_CHECKING:
    from docker import APIClient


def list_images(api: APIClient, repository: str) -> list[LocalImage]:
    """Every tag of a repository."""
    import docker.errors

    call: Any = api
    found = []
    for row in call.images(name=repository):
        try:
            detail = call.inspect_image(row["Id"])
        except docker.errors.NotFound:
            continue  # removed at this very moment
        moments = (detail.get("Created"), (detail.get("Metadata") or {}).get("LastTagTime"))
        touched = max(_moment(text) for text in moments)
        tags = [tag for tag in row.get("RepoTags") or () if tag.rpartition(":")[0] == repository]
        found += [LocalImage(tag, str(row["Id"]), touched, int(row.get("Size") or 0)) for tag in tags]
    return found


def used_images(api: APIClient) -> set[str]:
    """Ids of images that containers were made from, running or not."""
    return {str(row.get("ImageID", "")) for row in api.containers(all=True)}


def remove_image(api: APIClient, tag: str) -> bool:
    """Takes a tag away, and the image with its last one. False where the engine says that something uses it."""
    import docker.errors

    try:
        api.remove_image(tag, force=False)
    except docker.errors.NotFound:
        return False
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
        return False
    return True


def _moment(text: object) -> datetime:
    """The engine's time, to the second; an unreadable one counts as now, so that nothing goes because of it."""
    try:
        found = datetime.fromisoformat(str(text)[:19])
    except ValueError:
        return datetime.now(UTC)
    return found.replace(tzinfo=UTC)
