"""Write what follows from the code: JSON Schemas and the table of keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scalewise.config.schema import configuration_reference, site_schema, study_schema
from scalewise.records import write_text

ROOT = Path(__file__).parents[2]


def generated() -> dict[Path, str]:
    """Return the content of every generated file."""
    readme = ROOT / "config" / "README.md"
    return {
        ROOT / "workflow" / "schemas" / "experiments.schema.json": _json(study_schema()),
        ROOT / "workflow" / "schemas" / "site.schema.json": _json(site_schema()),
        readme: configuration_reference(readme.read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write all generated files."""
    for path, text in generated().items():
        write_text(path, text)
        print(path.relative_to(ROOT))
    return 0


def _json(schema: object) -> str:
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
