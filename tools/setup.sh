# Shared by quickstart.sh and test.sh, which source it at the top of the checkout: packages of the system, and .venv.
# Works without a terminal, as root or with sudo, and whatever Python comes first in PATH.

export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0
unset PYTHONHOME PYTHONPATH

# apt_install PACKAGE...: those that are not there yet.
apt_install() {
  local package missing=() root=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ! command -v apt-get >/dev/null; then
    echo "This system has no apt-get. Please install what matches these Debian packages: ${missing[*]}" >&2
    return 1
  fi
  if [[ $(id -u) != 0 ]]; then
    root=(sudo env DEBIAN_FRONTEND=noninteractive)
  fi
  echo "Installing ${missing[*]}"
  # An update that fails in part (one dead mirror) may still be enough for the install.
  "${root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq || true
  "${root[@]}" apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null </dev/null
}

# A Python that can make a virtual environment and build an extension.
_python_serves() {
  "$1" -c 'import sys, os, ensurepip, venv, sysconfig
ok = sys.version_info >= (3, 10) and os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
sys.exit(not ok)' >/dev/null 2>&1 </dev/null
}

# make_venv: .venv with a pip that works, made anew when it is broken.
make_venv() {
  [[ -x .venv/bin/python ]] && .venv/bin/python -m pip --version >/dev/null 2>&1 </dev/null && return 0
  local python=python3
  if ! _python_serves "$python"; then
    apt_install python3 python3-venv python3-dev
    python=/usr/bin/python3
    if ! _python_serves "$python"; then
      echo "kvart needs Python 3.10 or newer with venv and its headers; found: $($python --version 2>&1)" >&2
      return 1
    fi
  fi
  rm -rf .venv
  "$python" -m venv .venv
}
