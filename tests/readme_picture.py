"""Makes docs/images/report.png: the top of the page that `faultline demo` left in a run directory.

    python tests/readme_picture.py runs/demo-…"""

import base64
import pathlib
import sys

import browser

WIDTH, HEIGHT = 1100, 1180


def main():
    page = pathlib.Path(sys.argv[1]) / "report.html"
    target = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "report.png"
    with browser.Browser() as chromium:
        complaints = chromium.open(page, WIDTH, HEIGHT)
        assert complaints == [], complaints
        shot = chromium.call("Page.captureScreenshot", format="png", clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}, captureBeyondViewport=True)
    target.write_bytes(base64.b64decode(shot["data"]))
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
