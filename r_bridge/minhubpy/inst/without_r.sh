# Run a command as if R had not started it: sh without_r.sh LDPATHS COMMAND [ARGUMENT]...
# LDPATHS is R's etc/ldpaths. It puts folders before LD_LIBRARY_PATH in which a Python may find another Python's library.
ldpaths=$1
shift
if [ -n "$LD_LIBRARY_PATH" ] && [ -f "$ldpaths" ]; then
  added=$(unset LD_LIBRARY_PATH; . "$ldpaths"; echo "$LD_LIBRARY_PATH")
  while :; do # an R that R has started adds them once more
    case $LD_LIBRARY_PATH in
    "$added") LD_LIBRARY_PATH= ;;
    "$added":*) LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$added":} ;;
    *) break ;;
    esac
  done
  [ -n "$LD_LIBRARY_PATH" ] || unset LD_LIBRARY_PATH
fi
PYTHONUTF8=1
export PYTHONUTF8
exec "$@"
