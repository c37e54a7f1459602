"""How lines and markers look in all figures; told apart without colour."""

MARKERS = "o^sDvPX*<>hd"
DASHES = ("-", "--", "-.", ":")
STYLE = {
    "text.parse_math": False,  # a class may be called "$"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}
