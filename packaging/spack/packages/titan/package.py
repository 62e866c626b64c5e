# SPDX-License-Identifier: MIT
"""titan for Spack 1.0 and newer, from the branch main of this clone:

    spack repo add packaging/spack
    spack install titan
"""
import os

from spack.package import *
from spack_repo.builtin.build_systems.meson import MesonPackage

CLONE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))


class Titan(MesonPackage):
    """Trains language models on many processes with one C program: FSDP and HSDP, a planned scheduler, checkpoints that
    can be trusted."""

    homepage = "file://" + CLONE
    git = "file://" + CLONE

    license("MIT")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("meson@0.61:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type="build")
    depends_on("cmocka", type="test")

    # titan launch calls Open MPI's mpirun, or srun with PMIx.
    depends_on("openmpi", type=("build", "link", "run"))
    depends_on("openblas", type=("build", "link", "run"))  # loaded at run time; the rpath of a link leads to it
    depends_on("libyaml")
    depends_on("jansson")
    depends_on("pcre2")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("xxhash")
    depends_on("utf8proc")
    depends_on("hwloc@2.1:")

    def meson_args(self):
        # Spack has no scdoc, which makes the manual pages.
        return ["-Dman=disabled", f"-Dtests={'true' if self.run_tests else 'false'}"]

    def check(self):
        with working_dir(self.build_directory):
            which("meson", required=True)("test", "--suite", "unit")
