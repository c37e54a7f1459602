"""Take the picture of a report that README.md shows, with a headless Chromium.

python docs/screenshot.py runs/digits/report.html
"""

import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).parent / "report.png"
SIZE = "1100,1150"  # pixels


def main(page: Path) -> None:
    """Write the first screen of a page."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("error: no Chromium is installed")
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars".split()
    size = f"--window-size={SIZE}"
    command = [browser, *options, size, f"--screenshot={OUT}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
