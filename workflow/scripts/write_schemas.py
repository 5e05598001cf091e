"""Write the JSON Schemas of the configuration, and the table of keys in config/README.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scalewise.plan.config import study_schema
from scalewise.plan.reference import configuration_reference
from scalewise.plan.site import SiteFile
from scalewise.records import write_text

ROOT = Path(__file__).parents[2]


def generated() -> dict[Path, str]:
    """Every generated file with what should stand in it."""
    readme = ROOT / "config" / "README.md"
    return {
        ROOT / "workflow" / "schemas" / "experiments.schema.json": _json(study_schema()),
        ROOT / "workflow" / "schemas" / "site.schema.json": _json(SiteFile.model_json_schema()),
        readme: configuration_reference(readme.read_text(encoding="utf-8")),
    }


def main() -> int:
    """Called by ``make schemas``."""
    for path, text in generated().items():
        write_text(path, text)
        print(path.relative_to(ROOT))
    return 0


def _json(schema: object) -> str:
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
