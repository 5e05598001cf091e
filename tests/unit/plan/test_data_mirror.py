"""A site says where downloads come from; that reaches what downloads and reruns nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scalewise.plan.catalog.datasets import CHECKSUMS_VARIABLE, MIRROR_VARIABLE
from scalewise.plan.config.site import SiteFile, resolve_site
from scalewise.plan.jobs.make_plan import site_environment


def variables(**keys: Any) -> dict[str, str]:
    facts = SiteFile(cpus_per_node=2, accelerator="cpu", **keys)
    site = resolve_site(facts)
    return site_environment(site)


@pytest.mark.parametrize(
    "place",
    ["/datasets/public", "near/by", "https://mirror.example/data", "http://10.0.0.1:8000", "file:///data"],
)
def test_the_place_of_the_files_reaches_what_downloads(place: str) -> None:
    found = variables(data_mirror=place, data_checksums="near/SHA256SUMS")

    assert found[MIRROR_VARIABLE] == place
    assert found[CHECKSUMS_VARIABLE] == "near/SHA256SUMS"


def test_a_site_without_a_mirror_sets_nothing() -> None:
    assert {MIRROR_VARIABLE, CHECKSUMS_VARIABLE} & variables().keys() == set()


@pytest.mark.parametrize("place", ["ftp://mirror.example", "s3://bucket/data", "", "-o", "a\nb", "<mirror>"])
def test_a_place_that_nothing_can_be_had_from_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match="data_mirror"):
        SiteFile(data_mirror=place)
