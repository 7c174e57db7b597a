"""Which headers declare what a source file defines."""
import re
from functools import cache
from pathlib import Path

PUBLIC = re.compile(r'^\s*#\s*include\s*[<"]lockstep/(\w+)/(\w+)\.h[>"]', re.M)


@cache
def stems_in(layer):
    """The names of the source files of a layer."""
    return {file.stem for file in Path("src", layer).rglob("*.cc")}


def own_headers(source):
    """The headers of a source file, below the repository, which is the working
    folder: those with its name, and of the public headers of its layer that it
    includes those that are named after no source file, such as training_loop.h."""
    source = Path(source)
    headers = {source.with_suffix(".h")}
    if source.parts[0] != "src" or len(source.parts) < 3:
        return headers
    layer = source.parts[1]
    headers.add(Path("include/lockstep", layer, source.stem + ".h"))
    if source.suffix == ".cc" and source.exists():
        for other, stem in PUBLIC.findall(source.read_text(encoding="utf-8")):
            if other == layer and stem not in stems_in(layer):
                headers.add(Path("include/lockstep", layer, stem + ".h"))
    return headers
